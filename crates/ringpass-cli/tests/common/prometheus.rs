//! A real Prometheus that scrapes a program.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use ringpass_lab::{Namespace, Program, prometheus, wait_until};
use serde_json::Value;

use super::text;

/// A Prometheus in a namespace, whose loopback is up; ended when dropped.
pub struct Prometheus<'a> {
    host: &'a Namespace,
    _server: Program,
    _folder: tempfile::TempDir,
}

impl<'a> Prometheus<'a> {
    /// Starts it, and waits until it has scraped `target` once.
    pub fn start(host: &'a Namespace, target: &str) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let config = folder.path().join("prometheus.yml");
        let scrape = format!(
            "scrape_configs:\n- job_name: ringpass\n  scrape_interval: 1s\n  static_configs:\n  - targets: ['{target}']\n"
        );
        std::fs::write(&config, scrape).expect("a file");
        let file = format!("--config.file={}", text(&config));
        let data = format!("--storage.tsdb.path={}", text(&folder.path().join("data")));
        let command = prometheus("prometheus", &[&file, &data, "--web.listen-address=127.0.0.1:9090"]);
        let command: Vec<&str> = command.iter().map(|part| &part[..]).collect();
        let server = host.spawn(&command);
        server.wait_for_stderr("Server is ready to receive web requests");
        let started = Self { host, _server: server, _folder: folder };
        wait_until("a scrape", || started.query("up == 1").len() == 1);
        started
    }

    /// Returns the values that a query has now.
    pub fn query(&self, query: &str) -> Vec<Value> {
        let plain = |byte: u8| byte.is_ascii_alphanumeric();
        let encode = |byte: u8| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") };
        let query: String = query.bytes().map(encode).collect();
        let answer = self.get(&format!("/api/v1/query?query={query}"));
        let answer: Value = serde_json::from_str(&answer).expect("JSON");
        assert_eq!(answer["status"], "success", "{answer}");
        answer["data"]["result"].as_array().expect("values").clone()
    }

    fn get(&self, path: &str) -> String {
        let request = format!("GET {path} HTTP/1.0\r\n\r\n");
        let (head, body) = self.host.enter(|| {
            let stream = TcpStream::connect_timeout(&([127, 0, 0, 1], 9090).into(), Duration::from_secs(20))
                .expect("it listens");
            stream.set_read_timeout(Some(Duration::from_secs(20))).expect("a limit");
            ask(stream, &request)
        });
        assert!(head.contains(" 200 OK"), "{head} {body}");
        body
    }
}

/// Sends a request and returns the answer's head and body.
pub fn ask(mut stream: impl Read + Write, request: &str) -> (String, String) {
    stream.write_all(request.as_bytes()).expect("it listens");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer, and the end");
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head and a body");
    (head.to_owned(), body.to_owned())
}
