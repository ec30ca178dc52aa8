//! The control queue: commands, one at a time (VIRTIO 1.3, 5.1.6.5).

use std::time::{Duration, Instant};

use ringpass_memory::{Mempool, Packet};
use ringpass_port::{Error, MacAddress};
use ringpass_virtio::driver::Virtqueue;

use crate::ring::Ring;

/// How long the device may take to answer a command.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(1);
const OK: u8 = 0;
/// Value of the answer's byte before the device has written it.
const NONE: u8 = 0xff;

/// A command to the device.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Command {
    /// 5.1.6.5.1: receive frames for any address.
    Promiscuous(bool),
    /// 5.1.6.5.1: receive all multicast frames.
    AllMulticast(bool),
    /// 5.1.6.5.2: set the device's MAC address.
    Mac(MacAddress),
    /// 5.1.6.5.5: set the number of queue pairs in use.
    Pairs(u16),
}

impl Command {
    /// Returns the encoded command: class, command, data.
    fn bytes(self) -> Vec<u8> {
        match self {
            Self::Promiscuous(on) => vec![0, 0, on.into()],
            Self::AllMulticast(on) => vec![0, 1, on.into()],
            Self::Mac(mac) => [&[1, 1], &mac.0[..]].concat(),
            Self::Pairs(pairs) => [[4, 0], pairs.to_le_bytes()].concat(),
        }
    }
}

/// A control queue, independent of the kind of ring.
pub(crate) trait Control: Send {
    /// Has the device carry out a command, and waits up to 1 s for its answer.
    fn command(&mut self, command: Command) -> Result<(), Error>;
}

/// A virtqueue for commands.
pub(crate) struct ControlQueue<Q: Virtqueue + 'static> {
    pub(crate) ring: Ring<Q>,
    pub(crate) pool: Mempool,
}

impl<Q: Virtqueue + 'static> ControlQueue<Q> {
    /// Posts a request with one byte for the answer, and waits for the answer.
    fn ask(&mut self, request: &[u8]) -> Result<u8, String> {
        let mut packet = self.pool.alloc().ok_or("no buffer is left")?;
        if !packet.copy_from(&[request, &[NONE]].concat()) {
            return Err("the pool's buffers are too small".into());
        }
        // A command that was not answered in time stays posted, so the ring may be full.
        self.ring.queue.post_request(packet, 1).map_err(|_| "it does not answer")?;
        self.ring.publish();
        let start = Instant::now();
        loop {
            let late = start.elapsed() >= COMMAND_TIMEOUT;
            let mut answer = None;
            let taken = self.ring.queue.take(1, |used, _| answer = last_byte(&used.whole()));
            if let Err(broken) = taken {
                self.ring.fail(broken);
                return Err(broken.to_string());
            }
            match answer {
                // While other commands are still posted, this is a late answer to an earlier one.
                Some(answer) if self.ring.queue.posted() == 0 => return Ok(answer),
                _ if late => return Err(format!("it does not answer within {} ms", COMMAND_TIMEOUT.as_millis())),
                _ => std::thread::sleep(Duration::from_micros(50)),
            }
        }
    }
}

fn last_byte(packet: &Packet) -> Option<u8> {
    packet.array(packet.len().checked_sub(1)?).map(u8::from_le_bytes)
}

impl<Q: Virtqueue + 'static> Control for ControlQueue<Q> {
    fn command(&mut self, command: Command) -> Result<(), Error> {
        let why = match self.ask(&command.bytes()) {
            Ok(OK) => return Ok(()),
            Ok(code) => format!("it answers {code}"),
            Err(why) => why,
        };
        Err(Error::Fault(format!("the card did not carry out the command {command:?}: {why}")))
    }
}
