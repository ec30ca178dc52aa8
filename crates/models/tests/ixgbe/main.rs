//! The model of the 82599, held to the datasheet by a driver of a few lines: one test for each behaviour, stepped by
//! hand with a scripted wire.

mod driver;
mod filters;
mod hostile;
mod receive;
mod registers;
mod rss;
mod statistics;
mod transmit;
mod wires;
