//! The test kit for operators
