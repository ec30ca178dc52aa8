//! Exceptions.

use std::io;

use pyo3::create_exception;
use pyo3::exceptions::PyException;
use pyo3::prelude::*;

create_exception!(ringpass, Error, PyException, "Base of all errors of this module: one line, with cause and remedy.");
create_exception!(ringpass, InvalidError, Error, "A malformed address, or a value out of its range.");
create_exception!(ringpass, NotFoundError, Error, "There is no such device, interface, file or peer.");
create_exception!(ringpass, NotPermittedError, Error, "This user may not do that.");
create_exception!(ringpass, BusyError, Error, "Somebody else uses it: the kernel, a process, another thread.");
create_exception!(ringpass, OutOfMemoryError, Error, "Too little memory, or too few huge pages.");
create_exception!(ringpass, UnsupportedError, Error, "The device, port or kernel cannot do that.");
create_exception!(
    ringpass,
    FaultError,
    Error,
    "A device or peer breaks its protocol, or a part of the library has failed."
);
create_exception!(ringpass, GoneError, Error, "The device, interface or peer behind a port has disappeared.");
create_exception!(ringpass, ClosedError, Error, "The ports were closed.");

/// Returns the exception for an error of the library.
pub fn exception(error: ringpass::Error) -> PyErr {
    use ringpass_memory::Error as Memory;
    let text = error.to_string();
    match error {
        ringpass::Error::Address(_) | ringpass::Error::Config(_) => InvalidError::new_err(text),
        ringpass::Error::Busy(_) => BusyError::new_err(text),
        ringpass::Error::Permission(_) => NotPermittedError::new_err(text),
        ringpass::Error::NotFound(_) | ringpass::Error::NoDriver(_) => NotFoundError::new_err(text),
        ringpass::Error::Unsupported(_) => UnsupportedError::new_err(text),
        ringpass::Error::Gone(_) => GoneError::new_err(text),
        ringpass::Error::Fault(_) => FaultError::new_err(text),
        ringpass::Error::Os { source, .. } | ringpass::Error::Memory(Memory::Os { source, .. }) => {
            os_exception(&source, text)
        }
        ringpass::Error::NoHugePages(_) | ringpass::Error::Memory(Memory::HugePages { .. }) => {
            OutOfMemoryError::new_err(text)
        }
        ringpass::Error::Memory(Memory::PhysicalHidden) => NotPermittedError::new_err(text),
        ringpass::Error::Memory(Memory::PhysicalOnOrdinaryPages | Memory::PhysicalShared) => {
            UnsupportedError::new_err(text)
        }
        _ => Error::new_err(text),
    }
}

fn os_exception(error: &io::Error, text: String) -> PyErr {
    const ENXIO: i32 = 6;
    const ENODEV: i32 = 19;
    match (error.kind(), error.raw_os_error()) {
        (io::ErrorKind::NotFound, _) | (_, Some(ENXIO | ENODEV)) => NotFoundError::new_err(text),
        (io::ErrorKind::PermissionDenied, _) => NotPermittedError::new_err(text),
        (io::ErrorKind::ResourceBusy | io::ErrorKind::AddrInUse, _) => BusyError::new_err(text),
        (io::ErrorKind::OutOfMemory, _) => OutOfMemoryError::new_err(text),
        (io::ErrorKind::InvalidInput, _) => InvalidError::new_err(text),
        (io::ErrorKind::Unsupported, _) => UnsupportedError::new_err(text),
        _ => Error::new_err(text),
    }
}

/// Returns the exception for the use of closed ports.
pub fn closed() -> PyErr {
    ClosedError::new_err("the ports were closed")
}
