"""What ExecuTorch keeps of XNNPACK: the payload of a delegate, the log of its kernels."""
