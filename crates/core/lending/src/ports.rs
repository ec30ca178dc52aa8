//! Requests of applications to ports and queues, which [`Port::extension`] and [`RxQueue::extension`] carry, also
//! through decorators.

use std::any::Any;
use std::sync::Arc;

use ringpass_port::{Error, Port, RxQueue};

use crate::Lending;

/// Ports as lenders.
pub trait LendingPort {
    /// Returns the lending of a queue pair's guest, for a queue of another port; `None` if there is no guest or
    /// no such pair.
    fn lending(&mut self, pair: usize) -> Option<Arc<Lending>>;
}

impl<P: Port + ?Sized> LendingPort for P {
    fn lending(&mut self, pair: usize) -> Option<Arc<Lending>> {
        let mut request = LendingRequest { pair, answer: None };
        self.extension(&mut request);
        request.answer
    }
}

/// Queues as borrowers.
pub trait BorrowingQueue {
    /// From now on receives into buffers that a guest lends, where available, so that frames for the guest need
    /// not be copied. Must be called before the first burst. Fails where the queue cannot do this.
    fn borrow_from(&mut self, lending: &Arc<Lending>) -> Result<(), Error>;
}

impl<Q: RxQueue + ?Sized> BorrowingQueue for Q {
    fn borrow_from(&mut self, lending: &Arc<Lending>) -> Result<(), Error> {
        let none = "only queues of Intel's cards and of other guests can be mapped to a guest's";
        let mut request = BorrowingRequest { lending: lending.clone(), answer: Err(Error::Unsupported(none.into())) };
        self.extension(&mut request);
        request.answer
    }
}

struct LendingRequest {
    pair: usize,
    answer: Option<Arc<Lending>>,
}

struct BorrowingRequest {
    lending: Arc<Lending>,
    answer: Result<(), Error>,
}

/// Answers [`LendingPort::lending`]; for a port's [`extension`](Port::extension).
pub fn answer_lending(request: &mut dyn Any, lending: impl FnOnce(usize) -> Option<Arc<Lending>>) {
    if let Some(request) = request.downcast_mut::<LendingRequest>() {
        request.answer = lending(request.pair);
    }
}

/// Answers [`BorrowingQueue::borrow_from`]; for a queue's [`extension`](RxQueue::extension).
pub fn answer_borrowing(request: &mut dyn Any, borrow: impl FnOnce(&Arc<Lending>) -> Result<(), Error>) {
    if let Some(request) = request.downcast_mut::<BorrowingRequest>() {
        request.answer = borrow(&request.lending);
    }
}
