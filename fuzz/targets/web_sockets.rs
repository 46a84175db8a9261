#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| setpoint_fuzz::web_sockets(data));
