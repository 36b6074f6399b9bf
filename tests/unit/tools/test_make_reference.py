"""The reference pages."""

from hloserve.config import scheduling_schema, schema
from hloserve.config.settings import SETTINGS, environment_name
from tools.make_reference import PAGES, configuration, field_docs, section_class


def test_every_setting_has_a_sentence() -> None:
    """Each setting is documented under its field, in whole sentences."""
    docs = field_docs(schema, scheduling_schema)
    for path in SETTINGS:
        doc = docs[f"{section_class(path[:-1]).__name__}.{path[-1]}"]
        assert doc.endswith("."), f"{path}: {doc}"


def test_configuration_page_names_every_setting_and_variable() -> None:
    """The page has each setting with its path and its environment variable."""
    page = "\n".join(configuration())
    for path in SETTINGS:
        assert f"### `{'.'.join(path)}`" in page
        assert "<model>" in path or f"`{environment_name(path)}`" in page


def test_pages_are_made_the_same_every_time() -> None:
    """Making a page twice gives the same text, so the check cannot flicker."""
    for make in PAGES.values():
        assert list(make()) == list(make())
