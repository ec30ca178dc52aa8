//! The driver for Intel's 82576.
