//! The vhost-user back-end as a port.
