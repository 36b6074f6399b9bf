"""Texts for `model.py`: BERT's tokeniser, padding to compiled lengths, texts in tensors.

It needs NumPy alone. With the `tokenizers` library (`pip install 'hloserve[text]'`) the same ids
come quicker, and other threads run meanwhile.
"""

from hloserve.hooks.text.batches import (
    PaddedBatch,
    pad_batch,
    read_text_rows,
    seq_bucket,
    texts_of,
    write_text_rows,
)
from hloserve.hooks.text.tokenizer import BertTokenizer, Encoding, read_vocabulary

__all__ = [
    "BertTokenizer",
    "Encoding",
    "PaddedBatch",
    "pad_batch",
    "read_text_rows",
    "read_vocabulary",
    "seq_bucket",
    "texts_of",
    "write_text_rows",
]
