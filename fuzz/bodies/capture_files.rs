//! Fuzz body: capture files with arbitrary bytes (pcap, pcapng, compressed or not).

use std::fs::File;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::path::PathBuf;

use ringpass_host_ports::capture_file::Reader;

/// Length limit of a record's frame in bytes.
const LONGEST: usize = 256 << 10;
/// Number of records read from one file: a compressed one may hold any number.
const RECORDS: usize = 10_000;

/// Runs one case, which is a whole file.
pub fn case(data: &[u8]) {
    let file = memory_file(data);
    let path = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
    let Ok(mut reader) = Reader::open(&path) else { return };
    let first = read(&mut reader);
    if reader.rewind().is_ok() {
        assert_eq!(read(&mut reader), first, "the same again");
    }
}

/// Reads a file. Returns the number of records, the number of their bytes, and whether the file ends without an
/// error.
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
