//! The conformance suite as a program.

fn main() -> std::process::ExitCode {
    lease_conformance::program::main()
}
