"""Decoder layers of Hugging Face models cut over the ranks of a tensor group, in place."""
