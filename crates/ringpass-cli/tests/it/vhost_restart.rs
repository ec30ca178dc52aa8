//! A back-end that is killed at any moment and restarted: `ringpass echo`, with our front-end connected to it.
//! No frame comes back twice or out of order, no frame is lost except those that the process held, and no
//! buffer is lost.

use crate::common::line::Line;
use ringpass_port::Port;

#[test]
fn a_back_end_that_is_killed_loses_no_more_than_it_held() {
    for features in ["", "-in_order", "-in_order-indirect_desc", "-packed", "-packed-in_order", "-event_idx-in_order"] {
        let mut line = Line::new(features);
        let notes = line.port.notes();
        let noted = if features.contains("-in_order") { "notes what is in flight" } else { "has not given back" };
        assert!(notes.iter().any(|note| note.contains(noted)), "{notes:?}");
        (0..12).for_each(|_| line.restart());
        eprint!("'{features}': ");
        line.end();
    }
}
