//! Tests of the public interface, in virtual time as far as possible.

mod stores;
mod timer;
