//! What this process tells the service manager that has started it (sd_notify(3)), if one has.

use sd_notify::NotifyState;

/// Tells it that the process serves, and `status` in words.
pub fn ready(status: &str) {
    tell(&[NotifyState::Ready, NotifyState::Status(status)]);
}

/// Tells it that the process ends.
pub fn stopping() {
    tell(&[NotifyState::Stopping]);
}

/// Whether it ends the process when [`alive`] is not called for a while (`WatchdogSec=`).
pub fn wants_signs_of_life() -> bool {
    sd_notify::watchdog_enabled(false, &mut 0)
}

/// Tells it that the process goes on.
pub fn alive() {
    tell(&[NotifyState::Watchdog]);
}

fn tell(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(false, states) {
        tracing::debug!(%error, "tell the service manager");
    }
}
