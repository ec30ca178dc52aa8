//! The Python module `ringpass`: the library `ringpass` for Python. Its types are described in ringpass.pyi.

#![deny(unsafe_code)]

mod control;
mod error;
mod packet;
mod ports;

/// Packet I/O in user space: network cards, virtual machines, netmap and the kernel as ports.
#[pyo3::pymodule(name = "ringpass")]
mod module {
    #[pymodule_export]
    use crate::control::Control;
    #[pymodule_export]
    use crate::error::{
        BusyError, ClosedError, Error, FaultError, GoneError, InvalidError, NotFoundError, NotPermittedError,
        OutOfMemoryError, UnsupportedError,
    };
    #[pymodule_export]
    use crate::packet::Packet;
    #[pymodule_export]
    use crate::ports::{Link, Port, Ports, Stats, open};
}
