"""In-place cutting of Hugging Face decoder layers over the ranks of a tensor group."""
