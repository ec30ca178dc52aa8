//! Runs the body of a fuzz target over its seeds and many mutations of them.

#[path = "../../../fuzz/bodies/control_requests.rs"]
mod control_requests;

use ringpass_testing::mutations;

#[test]
fn clients_of_a_control_socket_send_any_bytes() {
    mutations::run("control_requests", 50_000, control_requests::case);
}
