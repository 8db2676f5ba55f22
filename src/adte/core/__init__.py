"""Tensors and contracts: what every other room stands on."""
