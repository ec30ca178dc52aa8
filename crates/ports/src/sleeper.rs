//! Whether the consumer of a ring sleeps, so that its producer wakes it then and only then.

#[cfg(loom)]
use loom::sync::atomic::{AtomicBool, Ordering, fence};
#[cfg(not(loom))]
use std::sync::atomic::{AtomicBool, Ordering, fence};

/// The consumer says that it is about to sleep, then looks at the ring once more; the producer puts something into the
/// ring, then looks whether the consumer sleeps. With a full fence between the two steps on each side, one of them sees
/// the other.
pub(crate) struct Sleeper(AtomicBool);

impl Sleeper {
    pub(crate) fn new() -> Self {
        Self(AtomicBool::new(false))
    }

    /// The consumer's side: about to sleep. It must look at the ring once more.
    pub(crate) fn doze(&self) {
        self.0.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// The consumer's side: awake again.
    pub(crate) fn rise(&self) {
        self.0.store(false, Ordering::Relaxed);
    }

    /// The producer's side, behind a change of the ring: whether the consumer is to be woken. Yes only once.
    #[inline]
    pub(crate) fn wants_waking(&self) -> bool {
        fence(Ordering::SeqCst);
        self.0.load(Ordering::Relaxed) && self.0.swap(false, Ordering::Relaxed)
    }
}

/// All interleavings: `RUSTFLAGS="--cfg loom" cargo test -p ringpass-ports --lib loom`.
#[cfg(all(test, loom))]
mod loom_tests {
    use loom::sync::Arc;
    use loom::thread;

    use super::Sleeper;
    use crate::ring::ring;

    #[test]
    fn nobody_sleeps_over_a_packet() {
        loom::model(|| {
            let (mut producer, mut consumer) = ring(2);
            let sleeper = Arc::new(Sleeper::new());
            let sender = thread::spawn({
                let sleeper = sleeper.clone();
                move || {
                    producer.room(1);
                    producer.put([1]);
                    let woken = sleeper.wants_waking();
                    (producer, woken)
                }
            });
            sleeper.doze();
            let seen = consumer.take(1).next().is_some();
            let (_producer, woken) = sender.join().expect("the sender does not panic");
            assert!(seen || woken, "the packet is in the ring, the consumer asleep, and nobody wakes it");
        });
    }

    #[test]
    fn it_is_woken_once() {
        loom::model(|| {
            let sleeper = Arc::new(Sleeper::new());
            sleeper.doze();
            let other = thread::spawn({
                let sleeper = sleeper.clone();
                move || sleeper.wants_waking()
            });
            let woken = usize::from(sleeper.wants_waking());
            let woken = woken + usize::from(other.join().expect("the other does not panic"));
            assert_eq!(woken, 1);
        });
    }
}
