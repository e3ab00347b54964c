"""What all folders use: keys of parameter files, lengths, paths, errors, escaping, the hub,
GPUs."""
