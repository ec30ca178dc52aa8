//! Received frames, with the buffer protocol.

use std::ffi::{c_int, c_void};
use std::sync::{Mutex, MutexGuard, PoisonError};

use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

/// A received Ethernet frame, without its CRC. bytes(packet) copies it; memoryview(packet) does not. Sending it uses it up.
#[pyclass(frozen, module = "ringpass")]
pub struct Packet(Mutex<State>);

struct State {
    content: Content,
    /// Views of the content that exist. It stays in place until there are none.
    views: usize,
}

/// Where the frame is.
enum Content {
    /// In the pool, in one buffer of private memory.
    Pooled(ringpass::Packet),
    /// In memory of its own.
    Copied(Vec<u8>),
    Sent,
}

impl Packet {
    /// Wraps a received frame. It stays where it is if that is one buffer of `private` memory, and is copied otherwise: a peer
    /// may write to shared memory at any time, and a view shows consecutive bytes.
    pub fn new(packet: ringpass::Packet, private: bool) -> Self {
        let content = match private && !packet.is_chained() && !packet.flags().any(ringpass::Flags::LENT) {
            true => Content::Pooled(packet),
            false => Content::Copied(packet.segments().flat_map(ringpass::Packet::to_vec).collect()),
        };
        Self(Mutex::new(State { content, views: 0 }))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the frame out, to be sent. `copy` makes a packet of bytes; `None` if the pool is empty.
    pub fn take(&self, copy: impl FnOnce(&[u8]) -> Option<ringpass::Packet>) -> PyResult<Option<ringpass::Packet>> {
        let mut state = self.state();
        if state.views > 0 {
            return Err(PyBufferError::new_err("the packet has a memoryview; release it before the packet is sent"));
        }
        let packet = match std::mem::replace(&mut state.content, Content::Sent) {
            Content::Pooled(packet) => return Ok(Some(packet)),
            Content::Copied(bytes) => {
                let packet = copy(&bytes);
                if packet.is_none() {
                    state.content = Content::Copied(bytes);
                }
                packet
            }
            Content::Sent => return Err(sent()),
        };
        Ok(packet)
    }

    /// Puts a frame back that was taken and could not be sent.
    pub fn put_back(&self, packet: ringpass::Packet, private: bool) {
        *self.state() = Self::new(packet, private).0.into_inner().unwrap_or_else(PoisonError::into_inner);
    }
}

fn sent() -> PyErr {
    PyBufferError::new_err("the packet was sent")
}

#[pymethods]
impl Packet {
    fn __len__(&self) -> PyResult<usize> {
        match &self.state().content {
            Content::Pooled(packet) => Ok(packet.len()),
            Content::Copied(bytes) => Ok(bytes.len()),
            Content::Sent => Err(sent()),
        }
    }

    fn __bytes__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        match &self.state().content {
            Content::Pooled(packet) => PyBytes::new_with(py, packet.len(), |out| {
                packet.bytes().read(0, out);
                Ok(())
            }),
            Content::Copied(bytes) => Ok(PyBytes::new(py, bytes)),
            Content::Sent => Err(sent()),
        }
    }

    fn __repr__(&self) -> String {
        match &self.state().content {
            Content::Pooled(packet) => format!("<ringpass.Packet of {} bytes>", packet.len()),
            Content::Copied(bytes) => format!("<ringpass.Packet of {} bytes>", bytes.len()),
            Content::Sent => "<ringpass.Packet, sent>".into(),
        }
    }

    /// Fills a view of the frame's bytes, which may be written.
    #[allow(unsafe_code)]
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let mut state = slf.get().state();
        let (start, len) = match &mut state.content {
            Content::Pooled(packet) => (packet.as_ptr(), packet.len()),
            Content::Copied(bytes) => (bytes.as_mut_ptr(), bytes.len()),
            Content::Sent => return Err(sent()),
        };
        // SAFETY: Python calls this with a view to fill and itself holds the interpreter. The `len` bytes from `start` are owned
        // by this object, which the view keeps alive, and stay in place while `views` is not 0: `take` refuses then, and
        // nothing else changes the content. Only raw pointers lead to them until then; Python's own locking orders the
        // accesses of its threads.
        let filled = unsafe {
            ffi::PyBuffer_FillInfo(view, slf.as_ptr(), start.cast::<c_void>(), len as ffi::Py_ssize_t, 0, flags)
        };
        if filled != 0 {
            return Err(PyErr::fetch(slf.py()));
        }
        state.views += 1;
        Ok(())
    }

    /// Ends a view.
    #[allow(unsafe_code)]
    unsafe fn __releasebuffer__(&self, _view: *mut ffi::Py_buffer) {
        self.state().views -= 1;
    }
}
