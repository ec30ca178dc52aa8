//! The XDP program of an interface, attached by a link that the kernel removes with its last descriptor, also when the process is killed
//! (Linux, bpf(2), networking/af_xdp).

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use ringpass_port::FrameFilter;
use rustix::io::Errno;

use super::bpf::{self, Load};
use super::filter;
use super::hints::Hints;

/// How a program is attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Attachment {
    /// In the driver, before the kernel has made a packet of its own (`XDP_FLAGS_DRV_MODE`).
    Native,
    /// In the kernel's stack, with any driver (`XDP_FLAGS_SKB_MODE`).
    Generic,
}

impl Attachment {
    /// The word that users know.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Native => "native",
            Self::Generic => "generic",
        }
    }

    fn flags(self) -> u32 {
        match self {
            Self::Generic => 1 << 1,
            Self::Native => 1 << 2,
        }
    }
}

/// A program on an interface, until it is dropped.
pub(super) struct Program {
    map: OwnedFd,
    asks: bool,
    _link: OwnedFd,
}

impl Program {
    /// Attaches a program to an interface in one of these ways, the first that works, for sockets on this many of its queues. As long as
    /// no queue has a [socket](Self::redirect), the kernel gets all frames. Hints are for native mode alone.
    ///
    /// # Errors
    /// Those of bpf(2): EPERM, EBUSY if another program is attached, EOPNOTSUPP if the driver has no native mode.
    pub(super) fn attach(
        interface: i32,
        queues: u32,
        ways: &[Attachment],
        filters: &[FrameFilter],
        hints: Hints,
    ) -> io::Result<(Self, Attachment)> {
        let map = bpf::new_socket_map(queues)?;
        if hints.any() {
            // A program that asks the driver is for that driver alone. Whatever is against it, the others are tried.
            let code = filter::redirect(map.as_raw_fd(), filters, hints);
            let attach = |program: OwnedFd| bpf::attach(program, interface, Attachment::Native.flags());
            if let Ok(link) = bpf::load(&code, Load::Bound(interface)).and_then(attach) {
                return Ok((Self { map, asks: true, _link: link }, Attachment::Native));
            }
        }
        let code = filter::redirect(map.as_raw_fd(), filters, Hints::default());
        // Kernels before 5.18 have frames in one buffer each, and do not know the flag.
        let program = bpf::load(&code, Load::InPieces).or_else(|_| bpf::load(&code, Load::Plain))?;
        let mut refused = Errno::OPNOTSUPP.into();
        for &attachment in ways {
            match bpf::attach(&program, interface, attachment.flags()) {
                Ok(link) => return Ok((Self { map, asks: false, _link: link }, attachment)),
                Err(error) => refused = error,
            }
            // Others are the same for every way.
            let why = Errno::from_io_error(&refused);
            if matches!(why, Some(Errno::PERM | Errno::BUSY | Errno::NODEV)) {
                break;
            }
        }
        Err(refused)
    }

    /// Whether it asks the driver for hints.
    pub(super) fn asks(&self) -> bool {
        self.asks
    }

    /// Redirects the frames of a queue to a socket.
    pub(super) fn redirect(&self, queue: u32, socket: impl AsFd) -> io::Result<()> {
        bpf::set_socket(&self.map, queue, socket)
    }

    /// Lets the kernel have the frames of a queue.
    pub(super) fn clear(&self, queue: u32) {
        // There may be no socket any more.
        let _ = bpf::remove_socket(&self.map, queue);
    }
}
