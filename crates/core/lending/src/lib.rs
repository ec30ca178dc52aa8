//! Lending: buffers that belong to somebody else, such as a guest, are lent to a queue, so that a card receives
//! directly into the memory where the frames are to go. After Kawashima, *Software Physical/Virtual Rx Queue
//! Mapping* (IEEE TNSM 2021).
//!
//! A [`Lender`] (a virtqueue) lends to a [`Borrower`] (the Rx queue of a card) through a [`Lending`], which both
//! share for their whole lives. Guests come and go meanwhile. Each *lease*, from [`Lending::begin`] to
//! [`Lending::end`], has a [pool](ringpass_memory::LentPool) of its own, made of the guest's buffers. [`LendingPort`] and
//! [`BorrowingQueue`] are how an application brings the two together.

#![forbid(unsafe_code)]

mod lending;
mod ports;

pub use lending::{Borrower, Grant, Lease, Lender, Lending};
pub use ports::{BorrowingQueue, LendingPort, answer_borrowing, answer_lending};
