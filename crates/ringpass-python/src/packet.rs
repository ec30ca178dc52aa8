//! Received frames, with the buffer protocol.

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

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

/// Counter of the packets that Python holds in a pool, with a limit: a program that keeps all that it receives must not
/// leave the ports without buffers, or it would wait forever.
pub struct Held {
    count: AtomicUsize,
    limit: usize,
}

impl Held {
    /// Creates the counter.
    pub fn new(limit: usize) -> Arc<Self> {
        Arc::new(Self { count: AtomicUsize::new(0), limit })
    }

    /// Counts one more packet, unless there are too many.
    fn hold(self: &Arc<Self>) -> Option<Hold> {
        // The count orders nothing, and passes the limit only for a moment.
        let hold = Hold(self.clone());
        (self.count.fetch_add(1, Ordering::Relaxed) < self.limit).then_some(hold)
    }
}

/// A packet that counts, until dropped.
struct Hold(Arc<Held>);

impl Drop for Hold {
    fn drop(&mut self) {
        self.0.count.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Place of the frame.
enum Content {
    /// In the pool, in one buffer of private memory.
    Pooled {
        packet: ringpass::Packet,
        _hold: Hold,
    },
    /// In memory of its own.
    Copied(Vec<u8>),
    Sent,
}

impl Packet {
    /// Wraps a received frame. It stays where it is if that is one buffer of private memory and `held` has room, and is
    /// copied otherwise: a peer may write to shared memory at any time, and a view shows consecutive bytes.
    pub fn new(packet: ringpass::Packet, held: Option<&Arc<Held>>) -> Self {
        let stays = !packet.is_chained() && !packet.flags().any(ringpass::Flags::LENT);
        let content = match held.filter(|_| stays).and_then(Held::hold) {
            Some(_hold) => Content::Pooled { packet, _hold },
            None => Content::Copied(packet.segments().flat_map(ringpass::Packet::to_vec).collect()),
        };
        Self(Mutex::new(State { content, views: 0 }))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the frame out, to be sent. `fits` says whether a packet lies in the sender's pool; for others, `copy` makes a
    /// packet of bytes there, or `None` if the pool is empty.
    pub fn take(
        &self,
        fits: impl FnOnce(&ringpass::Packet) -> bool,
        copy: impl FnOnce(&[u8]) -> Option<ringpass::Packet>,
    ) -> PyResult<Option<ringpass::Packet>> {
        let mut state = self.state();
        if state.views > 0 {
            return Err(PyBufferError::new_err("the packet has a memoryview; release it before the packet is sent"));
        }
        let bytes = match std::mem::replace(&mut state.content, Content::Sent) {
            Content::Pooled { packet, .. } if fits(&packet) => return Ok(Some(packet)),
            Content::Pooled { packet, .. } => packet.to_vec(),
            Content::Copied(bytes) => bytes,
            Content::Sent => return Err(sent()),
        };
        let packet = copy(&bytes);
        if packet.is_none() {
            state.content = Content::Copied(bytes);
        }
        Ok(packet)
    }

    /// Puts a frame back that was taken and could not be sent.
    pub fn put_back(&self, packet: ringpass::Packet, held: Option<&Arc<Held>>) {
        *self.state() = Self::new(packet, held).0.into_inner().unwrap_or_else(PoisonError::into_inner);
    }
}

fn sent() -> PyErr {
    PyBufferError::new_err("the packet was sent")
}

#[pymethods]
impl Packet {
    fn __len__(&self) -> PyResult<usize> {
        match &self.state().content {
            Content::Pooled { packet, .. } => Ok(packet.len()),
            Content::Copied(bytes) => Ok(bytes.len()),
            Content::Sent => Err(sent()),
        }
    }

    fn __bytes__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        match &self.state().content {
            Content::Pooled { packet, .. } => PyBytes::new_with(py, packet.len(), |out| {
                packet.bytes().read(0, out);
                Ok(())
            }),
            Content::Copied(bytes) => Ok(PyBytes::new(py, bytes)),
            Content::Sent => Err(sent()),
        }
    }

    fn __repr__(&self) -> String {
        match &self.state().content {
            Content::Pooled { packet, .. } => format!("<ringpass.Packet of {} bytes>", packet.len()),
            Content::Copied(bytes) => format!("<ringpass.Packet of {} bytes>", bytes.len()),
            Content::Sent => "<ringpass.Packet, sent>".into(),
        }
    }

    /// Fills a view of the frame's bytes, which may be written.
    #[allow(unsafe_code)]
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let mut state = slf.get().state();
        let (start, len) = match &mut state.content {
            Content::Pooled { packet, .. } => (packet.as_ptr(), packet.len()),
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
