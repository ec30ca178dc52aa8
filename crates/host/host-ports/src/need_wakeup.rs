//! A flag by which the consumer of a ring asks its producer for a wake-up before it sleeps.

#[cfg(loom)]
use loom::sync::atomic::{AtomicBool, Ordering, fence};
#[cfg(not(loom))]
use std::sync::atomic::{AtomicBool, Ordering, fence};

/// Whether the consumer of a ring needs a wake-up.
///
/// The consumer sets the flag before it sleeps and then checks the ring once more. The producer puts something
/// into the ring and then checks the flag. With a full fence between the two steps on each side, one of them
/// sees the other's write.
pub(crate) struct NeedWakeup(AtomicBool);

impl NeedWakeup {
    pub(crate) fn new() -> Self {
        Self(AtomicBool::new(false))
    }

    /// Consumer: sets the flag before sleeping. The consumer must check the ring once more afterwards.
    pub(crate) fn prepare_to_wait(&self) {
        self.0.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Consumer: clears the flag after waking.
    pub(crate) fn finish_wait(&self) {
        self.0.store(false, Ordering::Relaxed);
    }

    /// Producer: returns whether the consumer must be woken, and clears the flag, so that only one call returns
    /// `true`. To be called after the ring was changed.
    #[inline]
    pub(crate) fn needs_wakeup(&self) -> bool {
        fence(Ordering::SeqCst);
        self.0.load(Ordering::Relaxed) && self.0.swap(false, Ordering::Relaxed)
    }
}

/// All interleavings: `RUSTFLAGS="--cfg loom" cargo test -p ringpass-host-ports --lib loom`.
#[cfg(all(test, loom))]
mod loom_tests {
    use loom::sync::Arc;
    use loom::thread;

    use super::NeedWakeup;
    use crate::ring::ring;

    #[test]
    fn nobody_sleeps_over_a_packet() {
        loom::model(|| {
            let (mut producer, mut consumer) = ring(2);
            let need_wakeup = Arc::new(NeedWakeup::new());
            let sender = thread::spawn({
                let need_wakeup = need_wakeup.clone();
                move || {
                    producer.room(1);
                    producer.put([1]);
                    let woken = need_wakeup.needs_wakeup();
                    (producer, woken)
                }
            });
            need_wakeup.prepare_to_wait();
            let seen = consumer.take(1).next().is_some();
            let (_producer, woken) = sender.join().expect("the sender does not panic");
            assert!(seen || woken, "the packet is in the ring, the consumer asleep, and nobody wakes it");
        });
    }

    #[test]
    fn it_is_woken_once() {
        loom::model(|| {
            let need_wakeup = Arc::new(NeedWakeup::new());
            need_wakeup.prepare_to_wait();
            let other = thread::spawn({
                let need_wakeup = need_wakeup.clone();
                move || need_wakeup.needs_wakeup()
            });
            let woken = usize::from(need_wakeup.needs_wakeup());
            let woken = woken + usize::from(other.join().expect("the other does not panic"));
            assert_eq!(woken, 1);
        });
    }
}
