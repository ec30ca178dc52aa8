//! Programs written for netmap, unmodified: `LD_PRELOAD=libringpass_netmap.so PROGRAM`. What they ask of `/dev/netmap` goes
//! to the process that serves netmap ports ([`netmap::server`]), which is started if there is none.
//!
//! `hooks` are the functions of the C library that programs meet here first; what is not about netmap they pass on
//! ([`next`]). A descriptor of `/dev/netmap` is a real one, of nothing (an empty epoll instance); what it stands for is in
//! [`table`], by its number: an [`open`], and, once a port is registered, its rings ([`registered`]). `poll` and its kin are all
//! one wait ([`wait`]) with other ways to ask and to answer ([`select`], [`epoll`]).
//!
//! What escapes: static programs, raw system calls, descriptors that are sent to other processes or kept over `exec`, an
//! epoll instance inside of another. A child by `fork` shares its parent's port; the two must agree on who uses a ring when.

#![deny(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod control;
mod epoll;
#[allow(unsafe_code, reason = "functions of the C library, with the pointers of programs")]
mod hooks;
#[allow(unsafe_code, reason = "functions of the C library, by name")]
mod next;
mod open;
mod parameter;
mod registered;
mod select;
mod sleepers;
mod start;
mod table;
mod wait;
