//! The lab itself: guests, scripts, and the pages of the documentation.

mod harness;
mod nics;
mod pages;
mod scripts;
