"""Hosts on other machines: boots that enrol themselves, and the schedulers that start them."""
