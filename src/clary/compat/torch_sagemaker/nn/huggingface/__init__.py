"""Attention in the form of Hugging Face models."""
