//! Package of the tests of futures on real runtimes. It keeps their dependencies out of the
//! library's tests.
