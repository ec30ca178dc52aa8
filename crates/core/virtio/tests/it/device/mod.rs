//! The device's side of split and packed rings, against the driver's side and against guests that break the
//! rules.

mod book;
mod guest;
mod honest;
mod hostile;
mod inflight;
mod threads;
mod vector;
