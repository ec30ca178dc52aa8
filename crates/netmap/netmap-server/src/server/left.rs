//! Descriptors that are left to a successor, by numbers.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::io::Errno;

use super::RequestError;

/// Store of descriptors, each under a name.
pub struct Store<'a> {
    put: &'a mut dyn FnMut(&str, BorrowedFd<'_>) -> io::Result<()>,
    count: usize,
}

impl<'a> Store<'a> {
    /// Creates one that is empty.
    pub fn new(put: &'a mut dyn FnMut(&str, BorrowedFd<'_>) -> io::Result<()>) -> Self {
        Self { put, count: 0 }
    }

    /// Puts a descriptor there. Returns its number.
    pub fn put(&mut self, fd: BorrowedFd<'_>) -> Result<usize, RequestError> {
        let number = self.count;
        (self.put)(&number.to_string(), fd).map_err(failed)?;
        self.count += 1;
        Ok(number)
    }

    /// Puts the last descriptor there, under this name.
    pub fn end(self, name: &str, fd: BorrowedFd<'_>) -> Result<(), RequestError> {
        (self.put)(name, fd).map_err(failed)
    }
}

/// Error: the programs cannot be left to a successor.
pub fn failed(error: io::Error) -> RequestError {
    RequestError::new(Errno::IO, format!("leaving the programs to a successor: {error}"))
}

/// Descriptors that were left, by their number.
pub struct Left(BTreeMap<usize, OwnedFd>);

impl Left {
    /// Has all that were found.
    pub fn new(files: BTreeMap<usize, OwnedFd>) -> Self {
        Self(files)
    }

    /// Takes a descriptor.
    pub fn take(&mut self, number: usize) -> Result<OwnedFd, RequestError> {
        self.0.remove(&number).ok_or_else(|| broken("a descriptor is missing"))
    }
}

/// Error: what was left cannot be gone on with.
pub fn broken(why: impl std::fmt::Display) -> RequestError {
    RequestError::new(Errno::INVAL, format!("what the former serving process has left: {why}"))
}
