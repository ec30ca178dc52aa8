//! Captures of ports whose queues are in use.

use std::collections::HashSet;
use std::io::{self, ErrorKind, Write};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ringpass_memory::Burst;
use ringpass_port::{Error, FrameFilter, RxDecorator, RxQueue, TxQueue};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketType, recv, send, sockopt};

use super::copier::{Copies, Rx, Tx};
use super::drain::start_draining;
use crate::capture_file::{Direction, Writer};

/// A capture that begins and ends while a port passes frames: its queues are wrapped where they are used, and unwrapped again. Without
/// one, a port does not do a single instruction more. The reader of the capture is at the other end of a socket.
pub struct LiveCapture {
    copies: Copies,
    wrapped: Arc<Wrapped>,
    socket: Arc<OwnedFd>,
    /// Set by the drop, which waits.
    is_awaited: Arc<AtomicBool>,
    /// `None` once this is dropped.
    thread: Option<JoinHandle<()>>,
}

/// Queues that are wrapped, and those that were in wrappers which have been dropped.
#[derive(Default)]
struct Wrapped {
    /// Addresses of the wrappers.
    wrappers: Mutex<HashSet<usize>>,
    rx: Mutex<Option<Box<dyn RxQueue>>>,
    tx: Mutex<Option<Box<dyn TxQueue>>>,
}

impl LiveCapture {
    /// Begins a capture of the port `name`, in pcapng, to a connected stream socket of the unix domain.
    ///
    /// # Errors
    /// The descriptor is no such socket; there is no thread.
    pub fn start(socket: OwnedFd, name: &str, filters: Vec<FrameFilter>) -> Result<Self, Error> {
        let is_stream = sockopt::socket_domain(&socket).is_ok_and(|domain| domain == AddressFamily::UNIX)
            && sockopt::socket_type(&socket).is_ok_and(|kind| kind == SocketType::STREAM);
        if !is_stream {
            return Err(Error::Config("a capture goes to a stream socket of the unix domain".into()));
        }
        let copies = Copies::new(filters);
        let socket = Arc::new(socket);
        let is_awaited = Arc::new(AtomicBool::new(false));
        let reader =
            Reader { socket: socket.clone(), copies: copies.clone(), stopped: None, is_awaited: is_awaited.clone() };
        let writer = Writer::stream(Box::new(reader), name);
        let thread = start_draining(writer, &copies)?;
        Ok(Self { copies, wrapped: Arc::default(), socket, is_awaited, thread: Some(thread) })
    }

    /// Returns what wraps receiving queues. To be used on the thread of the queues.
    pub fn wrap_rx(&self) -> impl FnMut(Box<dyn RxQueue>) -> Box<dyn RxQueue> + Send + use<> {
        let (copies, wrapped) = (self.copies.clone(), self.wrapped.clone());
        move |inner| {
            let rx = Some(Rx::new(inner, copies.copier(Direction::Received)));
            let wrapper = Box::new(LiveRx { rx, wrapped: wrapped.clone() });
            wrapped.add(address(&*wrapper));
            wrapper
        }
    }

    /// Returns what wraps a sending queue, likewise.
    pub fn wrap_tx(&self) -> impl FnOnce(Box<dyn TxQueue>) -> Box<dyn TxQueue> + Send + use<> {
        let (copies, wrapped) = (self.copies.clone(), self.wrapped.clone());
        move |inner| {
            let tx = Some(Tx::new(inner, copies.copier(Direction::Sent)));
            let wrapper = Box::new(LiveTx { tx, wrapped: wrapped.clone() });
            wrapped.add(address(&*wrapper));
            wrapper
        }
    }

    /// Returns what takes receiving queues out of their wrappers again; others stay as they are.
    pub fn unwrap_rx(&self) -> impl FnMut(Box<dyn RxQueue>) -> Box<dyn RxQueue> + Send + use<> {
        let wrapped = self.wrapped.clone();
        move |queue| wrapped.unwrap(queue, &wrapped.rx)
    }

    /// Returns what takes a sending queue out of its wrapper again, likewise.
    pub fn unwrap_tx(&self) -> impl FnOnce(Box<dyn TxQueue>) -> Box<dyn TxQueue> + Send + use<> {
        let wrapped = self.wrapped.clone();
        move |queue| wrapped.unwrap(queue, &wrapped.tx)
    }

    /// Ends the capture: what was copied so far is written, unless its reader does not read it for ten seconds. The queues are to be unwrapped.
    pub fn stop(&self) {
        self.copies.stop();
    }

    /// Returns how many frames it was to have and does not have, because its reader was too slow.
    pub fn lost(&self) -> u64 {
        self.copies.lost()
    }

    /// Returns whether it has ended, by [`stop`](Self::stop) or because its reader has left or said that it wants no more, by shutting down its end for writing.
    /// To be called several times a second.
    pub fn has_ended(&self) -> bool {
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        if recv(&self.socket, &mut [0; 1], flags).is_ok_and(|(_, len)| len == 0) {
            self.stop();
        }
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }
}

impl Drop for LiveCapture {
    /// Waits until what was copied is written, for a second at most if the reader does not read it.
    fn drop(&mut self) {
        self.is_awaited.store(true, Ordering::Relaxed);
        self.stop();
        // A panic of the thread was reported when it happened.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

impl Wrapped {
    fn add(&self, wrapper: usize) {
        self.wrappers.lock().unwrap_or_else(PoisonError::into_inner).insert(wrapper);
    }

    fn remove(&self, wrapper: usize) -> bool {
        self.wrappers.lock().unwrap_or_else(PoisonError::into_inner).remove(&wrapper)
    }

    /// Drops a wrapper and returns its queue, which it leaves in `left`. Another queue is returned as it is.
    fn unwrap<Q: ?Sized>(&self, queue: Box<Q>, left: &Mutex<Option<Box<Q>>>) -> Box<Q> {
        if !self.remove(address(&*queue)) {
            return queue;
        }
        drop(queue);
        let inner = left.lock().unwrap_or_else(PoisonError::into_inner).take();
        inner.expect("a wrapper that is dropped leaves its queue")
    }
}

/// Returns the address of a value in its box.
fn address<T: ?Sized>(value: &T) -> usize {
    std::ptr::from_ref(value).cast::<()>().addr()
}

struct LiveRx {
    /// Always there, but while this is dropped.
    rx: Option<Rx>,
    wrapped: Arc<Wrapped>,
}

impl RxDecorator for LiveRx {
    fn inner(&self) -> &dyn RxQueue {
        self.rx.as_ref().expect("it is there until the drop")
    }

    fn inner_mut(&mut self) -> &mut dyn RxQueue {
        self.rx.as_mut().expect("it is there until the drop")
    }

    fn rx_burst(&mut self, burst: &mut Burst) -> usize {
        self.inner_mut().rx_burst(burst)
    }
}

impl Drop for LiveRx {
    fn drop(&mut self) {
        self.wrapped.remove(address(self));
        let inner = self.rx.take().map(Rx::into_inner);
        *self.wrapped.rx.lock().unwrap_or_else(PoisonError::into_inner) = inner;
    }
}

struct LiveTx {
    /// Always there, but while this is dropped.
    tx: Option<Tx>,
    wrapped: Arc<Wrapped>,
}

impl TxQueue for LiveTx {
    fn tx_burst(&mut self, burst: &mut Burst) -> usize {
        self.tx.as_mut().expect("it is there until the drop").tx_burst(burst)
    }
}

impl Drop for LiveTx {
    fn drop(&mut self) {
        self.wrapped.remove(address(self));
        let inner = self.tx.take().map(Tx::into_inner);
        *self.wrapped.tx.lock().unwrap_or_else(PoisonError::into_inner) = inner;
    }
}

/// The reader's socket. Whoever has the other end may also have this one, so each call says itself that it does not block.
struct Reader {
    socket: Arc<OwnedFd>,
    copies: Copies,
    /// When the capture was seen to be stopped.
    stopped: Option<Instant>,
    /// Whether somebody waits for the end.
    is_awaited: Arc<AtomicBool>,
}

impl Reader {
    /// Returns whether the reader has had its time for the rest of a capture that is stopped.
    fn is_over(&mut self) -> bool {
        const TIME: Duration = Duration::from_secs(10);
        const TIME_IF_AWAITED: Duration = Duration::from_secs(1);
        let limit = if self.is_awaited.load(Ordering::Relaxed) { TIME_IF_AWAITED } else { TIME };
        self.copies.is_stopped() && self.stopped.get_or_insert_with(Instant::now).elapsed() > limit
    }
}

impl Write for Reader {
    /// Waits until the reader has taken something, or the capture is stopped and its time is over.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        const LOOK: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
        loop {
            match send(&self.socket, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(sent) => return Ok(sent),
                Err(Errno::AGAIN) if self.is_over() => return Err(ErrorKind::TimedOut.into()),
                Err(Errno::AGAIN) => drop(poll(&mut [PollFd::new(&self.socket, PollFlags::OUT)], Some(&LOOK))),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
