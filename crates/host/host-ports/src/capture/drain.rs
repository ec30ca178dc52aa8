//! The thread that writes the copies.

use std::thread::JoinHandle;
use std::time::Duration;

use ringpass_port::Error;

use super::copier::{Copies, RING, Track};
use crate::capture_file::{Writer, now};

/// Starts the thread.
pub(super) fn start_draining(writer: Writer, copies: &Copies) -> Result<JoinHandle<()>, Error> {
    let copies = copies.clone();
    let thread = std::thread::Builder::new().name("ringpass-capture".into()).spawn(move || drain(writer, &copies));
    thread.map_err(|source| Error::os("a thread that writes", source))
}

/// Writes the copies from all rings to the file, oldest first, until it is stopped or its reader is gone.
fn drain(writer: Writer, copies: &Copies) {
    const IDLE_SLEEP: Duration = Duration::from_micros(50);
    const MAX_IDLE_SLEEP: Duration = Duration::from_millis(2);
    let mut tracks: Vec<Track> = Vec::new();
    let mut writer = Some(writer);
    let mut rest = IDLE_SLEEP;
    let mut flushed = true;
    let mut frame = Vec::new();
    // After the first error nothing more is written, but the rings are still drained. Some packets taken before
    // the error are not in the file either.
    let attempt = |writer: &mut Option<Writer>, result: Result<(), Error>| {
        if let Err(error) = result {
            match writer.as_ref().is_some_and(Writer::is_stream) {
                // Its reader has left.
                true => copies.stop(),
                false => tracing::error!("{error}; the capture ends here"),
            }
            let unwritten = writer.take().map_or(0, |writer| writer.unwritten().packets);
            copies.lose(unwritten);
        }
    };
    let flush = |file: &mut Writer| file.write_losses(now(), copies.seen(), copies.lost()).and_then(|()| file.flush());
    // After the stop, only the packets that may have been waiting then are written, not all that may still
    // come.
    let mut left = None;
    loop {
        copies.add_tracks(&mut tracks);
        let stop = copies.is_stopped();
        if stop {
            let Some(fewer) = left.unwrap_or(tracks.len() * RING).checked_sub(1) else { break };
            left = Some(fewer);
        }
        let oldest = tracks.iter_mut().filter_map(|(direction, frames)| Some((frames.peek()?, *direction, frames)));
        if let Some((nanos, direction, frames)) = oldest.min_by_key(|&(nanos, ..)| nanos) {
            frames.take(&mut frame);
            match &mut writer {
                Some(file) => {
                    let result = file.write(nanos, direction, &frame);
                    attempt(&mut writer, result);
                }
                None => copies.lose(1),
            }
            (rest, flushed) = (IDLE_SLEEP, false);
        } else if stop {
            break;
        } else if rest < MAX_IDLE_SLEEP || flushed {
            std::thread::sleep(rest);
            rest = (rest * 2).min(MAX_IDLE_SLEEP);
        } else if let Some(file) = &mut writer {
            // Idle for a while: flush, so that readers see what there is.
            let result = flush(file);
            attempt(&mut writer, result);
            flushed = true;
        } else {
            flushed = true;
        }
    }
    let result = writer.as_mut().map_or(Ok(()), flush);
    attempt(&mut writer, result);
}
