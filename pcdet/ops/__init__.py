"""Operators on tensors, one folder each: plain-torch reference, CPU kernel, one door."""
