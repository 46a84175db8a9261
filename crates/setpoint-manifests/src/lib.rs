//! Objects in, YAML out: what an operator needs to be installed
