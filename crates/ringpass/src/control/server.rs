//! The program's side: sockets, their clients, and what each of them is owed. Nobody who connects can make the program wait.

use std::collections::VecDeque;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use ringpass_ipc::{AcceptWait, ConnectionLost, Descriptors, Listener, MessageLoop, SocketPlace, Stream, inherited};
use ringpass_port::Error;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::SocketFlags;
use serde_json::{Value, json};

use super::http::{self, Arrived, HttpRequest, TEXT};
use super::web::{self, Asked, Pace, WebPlace};
use super::{Greeting, MAX_LINE, PATIENCE, PROTOCOL, Request};

/// Most clients of a socket at a time, so that those of another one find room.
const MAX_CLIENTS: usize = 32;
/// Requests of a client in a turn.
const REQUESTS: usize = 8;
/// Events that wait for a client.
const MAX_EVENTS: usize = 256;

/// Sockets that a program is controlled by.
pub struct Server {
    program: String,
    sockets: Vec<Socket>,
    clients: Vec<Client>,
    patience: Duration,
    pace: Pace,
}

struct Socket {
    listener: Place,
    offer: Offer,
}

/// Where clients come from.
enum Place {
    Unix(Listener),
    /// A socket that does not block.
    Tcp(TcpListener),
}

/// What a client gets.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Offer {
    /// Answers and, with `changes`, changes.
    Control { changes: bool },
    /// Metrics by HTTP.
    Metrics,
    /// The page, and its events.
    Page(WebPlace),
    /// Events of the page, for as long as the browser shows it.
    Watching,
    /// That there is no room for it.
    Full,
    /// The rest of an answer, then the end.
    Answered,
}

struct Client {
    /// Number of the socket that it came by.
    socket: usize,
    messages: MessageLoop,
    offer: Offer,
    /// Events that it is to get, if it has asked for any.
    events: Option<Events>,
    /// The next pictures of the page that it is to get. One that does not read gets the newest only.
    picture: Vec<u8>,
}

#[derive(Default)]
struct Events {
    waiting: VecDeque<Vec<u8>>,
    /// Number of those for which there was no room.
    lost: u64,
}

impl Events {
    fn push(&mut self, line: &[u8]) {
        match self.waiting.len() {
            MAX_EVENTS.. => self.lost += 1,
            _ => self.waiting.push_back(line.to_vec()),
        }
    }

    fn pop(&mut self) -> Option<Vec<u8>> {
        self.waiting.pop_front().or_else(|| {
            let count = std::mem::take(&mut self.lost);
            (count > 0).then(|| line(&json!({ "event": "lost", "count": count })))
        })
    }
}

/// Returns a line with a value.
fn line(value: &Value) -> Vec<u8> {
    let mut line = value.to_string().into_bytes();
    line.push(b'\n');
    line
}

impl Server {
    /// Creates a server without a socket. `program` is what clients are told that they talk to.
    pub fn new(program: &str) -> Self {
        Self {
            program: program.into(),
            sockets: Vec::new(),
            clients: Vec::new(),
            patience: PATIENCE,
            pace: Pace::default(),
        }
    }

    /// Listens at a path, for clients that may read, and change things if `changes` is set. Whoever its access lets in.
    ///
    /// # Errors
    /// The path is in use or cannot be created.
    pub fn listen(&mut self, place: &SocketPlace, changes: bool) -> Result<(), Error> {
        let failed = |error| Error::Fault(format!("control socket: {error}"));
        let listener = Listener::bind_for(&place.path, &place.access).map_err(failed)?;
        self.sockets.push(Socket { listener: Place::Unix(listener), offer: Offer::Control { changes } });
        Ok(())
    }

    /// Serves metrics by HTTP at a TCP address such as `127.0.0.1:9184`, or at the path of a unix socket.
    ///
    /// # Errors
    /// The address or path is in use or cannot be had.
    pub fn listen_for_scrapers(&mut self, place: &str) -> Result<(), Error> {
        let wrong = |why: String| Error::Config(format!("metrics at {place}: {why}"));
        let listener = match place.parse::<SocketAddr>() {
            Ok(address) => Place::Tcp(listen_at(address).map_err(|error| wrong(error.to_string()))?),
            Err(_) if !place.contains('/') => {
                return Err(wrong("write an address and a port, such as 127.0.0.1:9184, or a path".into()));
            }
            Err(_) => {
                let SocketPlace { path, access } = place.parse().map_err(wrong)?;
                Place::Unix(Listener::bind_for(&path, &access).map_err(|error| wrong(error.to_string()))?)
            }
        };
        self.sockets.push(Socket { listener, offer: Offer::Metrics });
        Ok(())
    }

    /// Serves a page on which rings move, and returns its address.
    ///
    /// # Errors
    /// The address is in use or cannot be had.
    pub fn listen_for_browsers(&mut self, place: &WebPlace) -> Result<SocketAddr, Error> {
        let listener = listen_at(place.address).map_err(|error| place.wrong(&error))?;
        let address = listener.local_addr().map_err(|error| place.wrong(&error))?;
        let offer = Offer::Page(WebPlace { address, ..*place });
        self.sockets.push(Socket { listener: Place::Tcp(listener), offer });
        Ok(address)
    }

    /// Waits until a client wants something, for this long at most.
    pub fn wait(&self, limit: Duration) {
        let mut limit = if self.is_watched() { limit.min(self.pace.left()) } else { limit };
        let mut fds: Vec<PollFd<'_>> = Vec::new();
        for Socket { listener, .. } in &self.sockets {
            match listener {
                Place::Unix(listener) => match listener.wait_on() {
                    AcceptWait::Readable(socket) => fds.push(PollFd::from_borrowed_fd(socket, PollFlags::IN)),
                    AcceptWait::Pause(time) => limit = limit.min(time),
                },
                Place::Tcp(socket) => fds.push(PollFd::new(socket, PollFlags::IN)),
            }
        }
        for client in &self.clients {
            let (socket, events): (BorrowedFd<'_>, PollFlags) = client.messages.wait_on();
            fds.push(PollFd::from_borrowed_fd(socket, events));
            limit = client.messages.time_left().map_or(limit, |left| limit.min(left));
        }
        // A signal ends the wait, which is all that an error could say.
        let limit = Timespec::try_from(limit).unwrap_or(Timespec { tv_sec: 0, tv_nsec: 0 });
        let _ = poll(&mut fds, Some(&limit));
    }

    /// Answers what clients have asked, without waiting. `answer` gets the requests, other than those for events, and changes from clients that may
    /// change things alone; an error is in a line, with a remedy.
    pub fn serve(&mut self, answer: &mut dyn FnMut(Request, Vec<OwnedFd>) -> Result<Value, String>) {
        for (number, Socket { listener, offer }) in self.sockets.iter().enumerate() {
            // As many as may wait at the socket: one who connects again and again does not keep the others waiting.
            for _ in 0..MAX_CLIENTS {
                let socket = match listener {
                    Place::Unix(listener) => listener.accept(|_, _| {}),
                    Place::Tcp(listener) => accept(listener),
                };
                let Some(socket) = socket else { break };
                let there = self.clients.iter().filter(|client| client.socket == number).count();
                let (offer, patience) = match offer {
                    _ if there < MAX_CLIENTS => (*offer, Some(self.patience)),
                    Offer::Page(_) if there < 2 * MAX_CLIENTS => (Offer::Full, Some(self.patience)),
                    _ => (*offer, None),
                };
                if let Some(client) = Client::greet(socket, &self.program, offer, patience) {
                    self.clients.push(Client { socket: number, ..client });
                }
            }
        }
        if self.is_watched() && self.pace.is_due() {
            self.draw(answer);
        }
        let program = &self.program;
        self.clients.retain_mut(|client| client.serve(program, answer).is_ok());
    }

    /// Returns whether a browser shows the page.
    fn is_watched(&self) -> bool {
        self.clients.iter().any(|client| client.offer == Offer::Watching)
    }

    /// Makes a picture for all browsers.
    fn draw(&mut self, answer: &mut dyn FnMut(Request, Vec<OwnedFd>) -> Result<Value, String>) {
        /// Most stations that are asked for; a list of more would take too long.
        const MOST_STATIONS: u64 = 20_000;
        let begun = Instant::now();
        let Ok(status) = answer(Request::Status, Vec::new()) else { return self.pace.made(begun, false) };
        let number = status["switches"].as_array().into_iter().flatten();
        let number = number.filter_map(|switch| switch["stations"].as_u64()).sum();
        let mut picture = web::event("message", &status);
        let has_stations = self.pace.has_stations();
        if has_stations {
            let all = if number > MOST_STATIONS {
                Err(String::new())
            } else {
                answer(Request::Stations { switch: None }, Vec::new())
            };
            picture.extend(web::stations(all.unwrap_or_default(), number));
        }
        let watching = self.clients.iter_mut().filter(|client| client.offer == Offer::Watching);
        watching.for_each(|client| client.picture.clone_from(&picture));
        self.pace.made(begun, has_stations);
    }

    /// Returns whether a client has asked for events.
    pub fn has_listeners(&self) -> bool {
        self.clients.iter().any(|client| client.events.is_some())
    }

    /// Tells the clients that have asked for events of one. An event is an object with the key `event`.
    pub fn publish(&mut self, event: &Value) {
        let line = line(event);
        self.clients.iter_mut().filter_map(|client| client.events.as_mut()).for_each(|events| events.push(&line));
    }
}

impl Client {
    /// Greets a client, which has this much patience with it; without any, that is an error and the end.
    fn greet(socket: OwnedFd, program: &str, offer: Offer, patience: Option<Duration>) -> Option<Self> {
        // Who may change things is trusted with the descriptors of ports, too.
        let accepts = match offer {
            Offer::Control { changes: true } => Descriptors::Trusted,
            _ => Descriptors::Refused,
        };
        let mut stream = Stream::new(socket, MAX_LINE, accepts);
        let Offer::Control { changes } = offer else {
            return Some(Self::new(stream, patience?, offer));
        };
        let version = env!("CARGO_PKG_VERSION").into();
        let greeting = Greeting { protocol: PROTOCOL, program: program.into(), version, changes };
        let greeting = match patience {
            Some(_) => serde_json::to_value(greeting).unwrap_or_default(),
            None => json!({ "error": format!("{MAX_CLIENTS} clients are connected; end one") }),
        };
        // What a new socket has no room for is lost with it.
        stream.send(line(&greeting), Vec::new()).ok()?;
        Some(Self::new(stream, patience?, offer))
    }

    fn new(stream: Stream, patience: Duration, offer: Offer) -> Self {
        let messages = MessageLoop::new(stream, patience);
        Self { socket: 0, messages, offer, events: None, picture: Vec::new() }
    }

    fn serve(
        &mut self,
        program: &str,
        answer: &mut dyn FnMut(Request, Vec<OwnedFd>) -> Result<Value, String>,
    ) -> Result<(), ConnectionLost> {
        let Self { messages, offer, events, .. } = self;
        let changes = match *offer {
            Offer::Control { changes } => changes,
            Offer::Metrics | Offer::Full => return self.serve_once(answer),
            Offer::Page(place) => return self.serve_page(&place, program, answer),
            Offer::Watching => return self.serve_watching(),
            // Whatever comes now is not looked at; the client hangs up when it has read all.
            Offer::Answered => {
                messages.handle(1, |stream| match stream.has_unsent() {
                    true => Ok(false),
                    false => Err(ConnectionLost::Closed),
                })?;
                return Ok(());
            }
        };
        messages.handle(REQUESTS, |stream| {
            let arrived = stream.arrived();
            let Some(end) = arrived.iter().position(|&byte| byte == b'\n') else {
                if arrived.len() == MAX_LINE {
                    let error = format!("a line of more than {MAX_LINE} bytes");
                    stream.send(line(&json!({ "error": error })), Vec::new())?;
                    return Err(ConnectionLost::Truncated);
                }
                return match events.as_mut().and_then(Events::pop) {
                    Some(event) => stream.send(event, Vec::new()).map(|()| true),
                    None => Ok(false),
                };
            };
            let (range, descriptors) = stream.take(end + 1);
            let reply = reply(stream.bytes(range), descriptors, events, answer, changes);
            stream.send(line(&reply), Vec::new())?;
            Ok(true)
        })?;
        Ok(())
    }

    /// Answers one request by HTTP; the connection has ended after that.
    fn serve_once(
        &mut self,
        answer: &mut dyn FnMut(Request, Vec<OwnedFd>) -> Result<Value, String>,
    ) -> Result<(), ConnectionLost> {
        let is_full = self.offer == Offer::Full;
        self.serve_http(|request| {
            let reply = if is_full {
                http::answer("503 Service Unavailable", TEXT, "too many browsers show this page; close one\n")
            } else if request.is_post {
                http::answer("405 Method Not Allowed", TEXT, "only GET is understood\n")
            } else if request.path != "/metrics" {
                http::answer("404 Not Found", TEXT, "the metrics are at /metrics\n")
            } else {
                let text = answer(Request::Metrics { format: request.format }, Vec::new());
                let text = text.as_ref().map(|text| text.as_str().unwrap_or_default()).map_err(|why| &why[..]);
                http::metrics(text, request.format)
            };
            (reply, Offer::Answered)
        })
    }

    /// Answers a browser's request.
    fn serve_page(
        &mut self,
        place: &WebPlace,
        program: &str,
        answer: &mut dyn FnMut(Request, Vec<OwnedFd>) -> Result<Value, String>,
    ) -> Result<(), ConnectionLost> {
        self.serve_http(|request| match place.ask(request) {
            Asked::Answer(reply) => (reply, Offer::Answered),
            Asked::Order(order) => (web::ordered(answer(Request::Step { order }, Vec::new())), Offer::Answered),
            Asked::Events(mut head) => {
                let version = env!("CARGO_PKG_VERSION");
                let hello = json!({ "program": program, "version": version, "steps": place.steps });
                head.extend(web::event("hello", &hello));
                (head, Offer::Watching)
            }
        })
    }

    /// Answers a request by HTTP with what `reply` returns for it, and offers something else from then on.
    fn serve_http(&mut self, mut reply: impl FnMut(&HttpRequest) -> (Vec<u8>, Offer)) -> Result<(), ConnectionLost> {
        let Self { messages, offer, .. } = self;
        messages.handle(1, |stream| {
            let (len, (bytes, next)) = match http::look(stream.arrived()) {
                Arrived::Part if stream.arrived().len() == MAX_LINE => return Err(ConnectionLost::Truncated),
                Arrived::Part => return Ok(false),
                Arrived::Request(request) => (request.len, reply(&request)),
                Arrived::Other(bytes) => (stream.arrived().len(), (bytes, Offer::Answered)),
            };
            stream.take(len);
            stream.send(bytes, Vec::new())?;
            *offer = next;
            Ok(true)
        })?;
        Ok(())
    }

    /// Sends the newest picture to a browser that has read the one before.
    fn serve_watching(&mut self) -> Result<(), ConnectionLost> {
        let Self { messages, picture, .. } = self;
        messages.handle(1, |stream| {
            // Nothing is expected from it. What comes nevertheless ends its turn.
            let len = stream.arrived().len();
            stream.take(len);
            if picture.is_empty() {
                return Ok(len > 0);
            }
            stream.send(std::mem::take(picture), Vec::new())?;
            Ok(true)
        })?;
        Ok(())
    }
}

/// Listens at an address, on a socket that does not block; one that systemd has passed is taken.
fn listen_at(address: SocketAddr) -> std::io::Result<TcpListener> {
    let listener = match inherited::take_tcp(address) {
        Some(socket) => socket.into(),
        None => TcpListener::bind(address)?,
    };
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Accepts the next client of a TCP socket, on a non-blocking socket.
fn accept(listener: &TcpListener) -> Option<OwnedFd> {
    match rustix::net::accept_with(listener, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC) {
        Ok(client) => Some(client),
        Err(Errno::AGAIN) => None,
        Err(_) => {
            // Without descriptors or memory the socket stays readable, and would keep this thread busy.
            std::thread::sleep(Duration::from_millis(1));
            None
        }
    }
}

/// Answers a line.
fn reply(
    text: &[u8],
    descriptors: Vec<OwnedFd>,
    events: &mut Option<Events>,
    answer: &mut dyn FnMut(Request, Vec<OwnedFd>) -> Result<Value, String>,
    may_change: bool,
) -> Value {
    let mut request: Value = match serde_json::from_slice(text) {
        Ok(request @ Value::Object(_)) => request,
        Ok(_) => return json!({ "error": "a request is an object, such as {\"id\":1,\"request\":\"status\"}" }),
        Err(error) => return json!({ "error": format!("not JSON: {error}") }),
    };
    let id = request.as_object_mut().and_then(|object| object.remove("id"));
    let answered = match serde_json::from_value::<Request>(request) {
        Err(error) => Err(format!("not a request: {error}")),
        Ok(Request::Events) => {
            events.get_or_insert_default();
            Ok(json!({}))
        }
        Ok(request) if request.is_change() && !may_change => {
            Err("this socket is for looking only; take the other one".into())
        }
        Ok(request) => answer(request, descriptors),
    };
    let (key, value) = match answered {
        Ok(value) => ("ok", value),
        Err(why) => ("error", Value::from(why)),
    };
    match id {
        Some(id) => json!({ "id": id, key: value }),
        None => json!({ key: value }),
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Read, Write};
    use std::os::unix::net::UnixStream;
    use std::path::Path;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::super::Client as Asking;
    use super::*;

    /// Ends the server, also when a test fails.
    struct Stop<'a>(&'a AtomicBool);

    impl Drop for Stop<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }

    /// Serves a socket while `clients` runs.
    fn served(clients: impl FnOnce(&Path)) {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("control");
        let mut server = Server { patience: Duration::from_millis(300), ..Server::new("a test") };
        let place = SocketPlace { path: path.clone(), ..SocketPlace::default() };
        server.listen(&place, true).expect("a socket");
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut number = 0;
                while !stop.load(Ordering::Relaxed) {
                    server.serve(&mut |request, _| {
                        match request {
                            Request::Stations { switch: None } => Ok(json!([1, 2])),
                            Request::Stations { switch: Some(other) } => Err(format!("no switch '{other}'")),
                            // More than fits into a socket's buffer.
                            _ => Ok(json!("x".repeat(1 << 20))),
                        }
                    });
                    if server.has_listeners() {
                        number += 1;
                        server.publish(&json!({ "event": "tick", "number": number }));
                    }
                    server.wait(Duration::from_millis(1));
                }
            });
            let _stop = Stop(&stop);
            clients(&path);
        });
    }

    fn stations(path: &Path) {
        let mut client = Asking::connect(path).expect("it serves");
        assert_eq!(client.greeting().program, "a test");
        assert_eq!(client.request(&Request::Stations { switch: None }).expect("an answer"), json!([1, 2]));
        let refused = client.request(&Request::Stations { switch: Some("a".into()) });
        assert!(refused.is_err_and(|why| why.to_string() == "no switch 'a'"));
        assert!(
            client.request(&Request::Status).expect("an answer").as_str().is_some_and(|text| text.len() == 1 << 20)
        );
    }

    /// Connects, and reads the greeting.
    fn raw(path: &Path) -> BufReader<UnixStream> {
        let stream = UnixStream::connect(path).expect("it listens");
        stream.set_read_timeout(Some(Duration::from_secs(20))).expect("a limit");
        let mut stream = BufReader::new(stream);
        let mut greeting = String::new();
        stream.read_line(&mut greeting).expect("a greeting");
        stream
    }

    #[test]
    fn clients_that_are_in_the_way_hold_up_nobody() {
        served(|path| {
            // One says nothing, one half a line; one asks and asks and does not read.
            let [mut silent, mut half, mut deaf] = [raw(path), raw(path), raw(path)];
            half.get_mut().write_all(b"{\"request\":").expect("it takes half a line");
            deaf.get_mut().set_nonblocking(true).expect("a socket");
            let asks = b"{\"request\":\"status\"}\n".repeat(1000);
            while deaf.get_mut().write(&asks).is_ok() {}
            (0..3).for_each(|_| stations(path));
            // All three are gone after a while.
            std::thread::sleep(Duration::from_secs(1));
            deaf.get_mut().set_nonblocking(false).expect("a socket");
            for stream in [&mut silent, &mut half, &mut deaf] {
                let mut rest = Vec::new();
                let ended = stream.read_to_end(&mut rest);
                assert!(ended.is_ok() || ended.is_err_and(|why| why.kind() == std::io::ErrorKind::ConnectionReset));
            }
        });
    }

    #[test]
    fn a_line_without_end_and_one_client_too_many_are_told() {
        served(|path| {
            let mut long = raw(path);
            long.get_mut().write_all(&vec![b' '; MAX_LINE]).expect("it reads");
            let mut answer = String::new();
            long.read_line(&mut answer).expect("an answer");
            assert!(answer.contains("a line of more than"), "{answer}");
            drop(long);
            let mut ready = Vec::new();
            while ready.len() < MAX_CLIENTS {
                match Asking::connect(path) {
                    Ok(mut client) => {
                        client.request(&Request::Stations { switch: None }).expect("an answer");
                        ready.push(client);
                    }
                    // The one before has not been seen to be gone.
                    Err(_) => std::thread::sleep(Duration::from_millis(1)),
                }
            }
            let refused = Asking::connect(path).err().expect("no room").to_string();
            assert!(refused.contains("32 clients are connected"), "{refused}");
            drop(ready);
        });
    }

    #[test]
    fn events_come_in_order_and_lost_ones_are_counted() {
        served(|path| {
            let mut client = Asking::connect(path).expect("it serves");
            client.request(&Request::Events).expect("an answer");
            let mut last = 0;
            for _ in 0..5 {
                let event = client.event(Duration::from_secs(20)).expect("it lives").expect("an event");
                let number = event["number"].as_u64().expect("a number");
                assert!(number > last && event["event"] == "tick", "{event}");
                last = number;
            }
            stations(path);
        });
        let mut events = Events::default();
        (0..MAX_EVENTS + 3).for_each(|_| events.push(b"x\n"));
        (0..MAX_EVENTS).for_each(|_| assert_eq!(events.pop(), Some(b"x\n".to_vec())));
        assert_eq!(events.pop(), Some(line(&json!({ "event": "lost", "count": 3 }))));
        assert_eq!(events.pop(), None);
    }
}
