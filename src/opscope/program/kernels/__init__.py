"""Kernels by name: what they compute, in which number types, by which instruction set."""
