//! Clients of a control socket and of metrics that send any bytes: each whole line is answered, and nobody is kept waiting.

use std::cell::RefCell;
use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use ringpass::control::{Request, Server};
use ringpass_ipc::SocketPlace;
use serde_json::{Value, json};

/// A server with a socket for changes, one for looking, and one for scrapers.
struct Served {
    server: Server,
    paths: [PathBuf; 3],
}

impl Served {
    fn new() -> Self {
        let id = format!("{}-{:?}", std::process::id(), std::thread::current().id());
        let id: String = id.chars().filter(char::is_ascii_alphanumeric).collect();
        let paths = ["changes", "looking", "metrics"]
            .map(|name| std::env::temp_dir().join(format!("ringpass-fuzz-{id}-{name}")));
        let mut server = Server::new("a case");
        for (path, changes) in paths[..2].iter().zip([true, false]) {
            let place = SocketPlace { path: path.clone(), ..SocketPlace::default() };
            server.listen(&place, changes).expect("a socket");
        }
        server.listen_for_scrapers(paths[2].to_str().expect("text")).expect("a socket");
        Self { server, paths }
    }
}

thread_local! {
    static SERVED: RefCell<Served> = RefCell::new(Served::new());
}

/// Serves one client, whose first byte says to which socket the rest goes.
pub fn case(bytes: &[u8]) {
    let Some((&kind, sent)) = bytes.split_first() else { return };
    let kind = usize::from(kind) % 3;
    SERVED.with_borrow_mut(|Served { server, paths }| {
        let mut client = UnixStream::connect(&paths[kind]).expect("it listens");
        // The case is shorter than what the socket holds.
        client.write_all(sent).expect("it takes all");
        client.shutdown(Shutdown::Write).expect("a socket");
        client.set_nonblocking(true).expect("a socket");
        let mut changes = 0;
        let mut answers = Vec::new();
        let mut ended = false;
        // A turn takes a few requests, each of which has two bytes at least.
        for _ in 0..16 + sent.len() {
            server.serve(&mut |request, descriptors| {
                assert!(descriptors.is_empty());
                changes += usize::from(request.is_change());
                match request {
                    Request::Metrics { .. } => Ok(json!("a_metric 1\n# EOF\n")),
                    Request::Stations { .. } => Err("there is none".into()),
                    _ => Ok(json!({})),
                }
            });
            match client.read_to_end(&mut answers) {
                Ok(_) => {
                    ended = true;
                    break;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) if error.kind() == ErrorKind::ConnectionReset => {
                    ended = true;
                    break;
                }
                Err(error) => panic!("{error}"),
            }
        }
        assert!(ended, "the client has hung up");
        assert!(kind == 0 || changes == 0, "a client that may look has changed something");
        match kind {
            2 => {
                let text = String::from_utf8(answers).expect("text");
                assert!(text.is_empty() || text.starts_with("HTTP/1.1 "), "{text}");
            }
            _ => {
                let lines: Vec<&[u8]> = answers.split_inclusive(|&byte| byte == b'\n').collect();
                let asked = sent.iter().filter(|&&byte| byte == b'\n').count();
                // The greeting, and an answer to each line; those to the last ones may be lost with the connection.
                assert!(lines.len() <= 1 + asked, "{} lines for {asked}", lines.len());
                for line in lines.iter().filter(|line| line.ends_with(b"\n")) {
                    let value: Value = serde_json::from_slice(line).expect("JSON");
                    assert!(["protocol", "ok", "error"].iter().any(|key| value.get(key).is_some()), "{value}");
                }
            }
        }
    });
}
