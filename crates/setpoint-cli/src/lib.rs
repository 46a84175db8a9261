//! The setpoint command
