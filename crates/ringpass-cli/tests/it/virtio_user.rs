//! `virtio-user:` in programs: in the sandbox, and in a container of an ordinary user. `ringpass echo` is the
//! front-end; the back-end runs in the test, which ends and restarts it.

use crate::common::back::Back;
use crate::common::*;
use ringpass_lab::Ended;
use ringpass_port::Role;
use serde_json::Value;

/// Waits for the first line of `ringpass echo`, which it prints once it runs.
fn begun(program: &Program) -> Value {
    serde_json::from_str(&program.line()).expect("a line in JSON")
}

#[test]
fn a_server_meets_one_back_end_after_the_other_from_inside_the_sandbox() {
    let folder = folder();
    let path = folder.path().join("card");
    let echo = Program::spawn(&[RINGPASS, "echo", &format!("virtio-user:{},server", path.display()), "--json"]);
    wait_until("the socket", || path.exists());
    let mut back = Back::new(&path, Role::Connect);
    begun(&echo);
    let status = std::fs::read_to_string(format!("/proc/{}/status", echo.id())).unwrap();
    assert!(status.contains("Seccomp:\t2"), "{status}");
    for _ in 0..3 {
        back.echoed(100);
        drop(back);
        back = Back::new(&path, Role::Connect);
    }
    back.echoed(100);
    let summary = echo.summary();
    assert_eq!(summary["ports"][0]["extended"]["reconnects"].as_u64().or(Some(3)), Some(3), "{summary}");
}

#[test]
fn a_client_comes_back_from_inside_the_sandbox() {
    let folder = folder();
    // Folder and socket belong to the test's user alone, and the sandboxed process runs as another user.
    let path = folder.path().join("card");
    let listen = || Back::new(&path, Role::Listen);
    let mut back = listen();
    let echo = Program::spawn(&[RINGPASS, "echo", &format!("virtio-user:{}", path.display()), "--json"]);
    begun(&echo);
    for _ in 0..3 {
        back.echoed(100);
        drop(back);
        back = listen();
    }
    back.echoed(100);
    echo.summary();
}

/// No privileges, no network, and nothing of the host's file system except the socket's folder.
#[test]
fn a_container_of_an_ordinary_user_needs_no_privilege() {
    let (folder, program) = for_everybody();
    let path = folder.path().join("card");
    let address = format!("virtio-user:{},server", path.display());
    let user = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", "--inh-caps=-all"];
    let container = ["unshare", "--user", "--map-current-user", "--mount", "--net", "--ipc", "--uts"];
    let echo = [text(&program), "echo", &address, "--json", "--hugepages", "off"];
    let echo = Program::spawn(&[&user[..], &container, &echo].concat());
    wait_until("the socket", || path.exists());
    let mut back = Back::new(&path, Role::Connect);
    begun(&echo);
    back.echoed(500);
    drop(back);
    let mut back = Back::new(&path, Role::Connect);
    back.echoed(500);
    echo.summary();
}

/// Root serves guests; an ordinary user connects to the socket that is open to it, and to no other.
#[test]
fn an_ordinary_user_enters_where_the_mode_lets_it() {
    let (folder, program) = for_everybody();
    let [open, closed] = ["open", "closed"].map(|name| folder.path().join(name));
    let ports = [format!("vhost:{},mode=0666", open.display()), format!("vhost:{}", closed.display())];
    let switch = Program::spawn(&[RINGPASS, "switch", &ports[0], &ports[1]]);
    wait_until("the sockets", || open.exists() && closed.exists() && switch.line().contains("system calls"));
    let enter = |socket: &std::path::Path| {
        let address = format!("virtio-user:{}", socket.display());
        let user = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"];
        Program::spawn(&[&user[..], &[text(&program), "echo", &address, "--time", "0.2"]].concat())
            .wait(std::time::Duration::from_secs(60))
    };
    let Ended { status, lines, errors } = enter(&open);
    assert_eq!(status, Some(0), "{lines:?} {errors:?}");
    let Ended { status, errors, .. } = enter(&closed);
    assert!(status == Some(1) && errors.last().unwrap().contains("may not be connected to by this user"), "{errors:?}");
}
