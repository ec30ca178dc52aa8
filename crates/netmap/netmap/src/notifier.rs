//! Waking the other side of a ring.

use std::sync::Arc;

/// Callback that wakes the other side.
pub type Notifier = Arc<dyn Fn() + Send + Sync>;
