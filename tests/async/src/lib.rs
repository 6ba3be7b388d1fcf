//! Holds the tests of the futures on real runtimes, which need more dependencies than the tests of
//! the library should.
