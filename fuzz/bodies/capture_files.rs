//! Capture files of any bytes: pcap, pcapng, compressed or not.

use std::fs::File;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::path::PathBuf;

use ringpass_ports::capture_file::Reader;

/// Longest frame that a record may have.
const LONGEST: usize = 256 << 10;
/// Records that are read of one file: a compressed one may hold any number.
const RECORDS: usize = 10_000;

/// The case is a whole file.
pub fn case(data: &[u8]) {
    let file = memory_file(data);
    let path = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
    let Ok(mut reader) = Reader::open(&path) else { return };
    let first = read(&mut reader);
    if reader.rewind().is_ok() {
        assert_eq!(read(&mut reader), first, "the same again");
    }
}

/// How many records there are and how many bytes they have, and whether the file ends well.
fn read(reader: &mut Reader) -> (usize, usize, bool) {
    let mut bytes = 0;
    for records in 0..RECORDS {
        match reader.next() {
            Ok(Some(record)) => {
                assert!(record.bytes.len() <= LONGEST, "a record of {} bytes", record.bytes.len());
                bytes += record.bytes.len();
            }
            Ok(None) => return (records, bytes, true),
            Err(_) => return (records, bytes, false),
        }
    }
    (RECORDS, bytes, true)
}

fn memory_file(data: &[u8]) -> File {
    let fd = rustix::fs::memfd_create("capture", rustix::fs::MemfdFlags::CLOEXEC).expect("a file in memory");
    let mut file = File::from(fd);
    file.write_all(data).expect("memory");
    file
}
