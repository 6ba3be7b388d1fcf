//! Payloads of a type, as JSON with a version.
//!
//! The bytes are the version as a number, a space, and JSON: people and SQL can read them.

use std::{any::Any, error::Error};

use serde::{Serialize, de::DeserializeOwned};

use crate::{error::InputError, store::NewTimeout, time::WallTime, timer::Delivery};

/// A type of payloads, whose form has a version.
///
/// Timeouts live for months, so a program meets payloads of its earlier versions, and a worker of
/// an earlier version meets those of a later one. A handler that returns
/// [`PayloadError::UnknownVersion`] leaves the timeout to another worker. Wrapped in another error,
/// such as one of `anyhow` or an enum, it is a failed attempt.
///
/// # Examples
///
/// ```
/// use delaywheel_durable::{NewTimeout, Payload, PayloadError, WallTime};
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Serialize, Deserialize)]
/// struct Reminder {
///     to: String,
///     language: String,
/// }
///
/// impl Payload for Reminder {
///     const VERSION: u32 = 2;
///
///     fn read(version: u32, json: &[u8]) -> Result<Self, PayloadError> {
///         match version {
///             // The first version was the address alone.
///             1 => Ok(Self { to: serde_json::from_slice(json)?, language: "en".to_owned() }),
///             2 => Ok(serde_json::from_slice(json)?),
///             _ => Err(PayloadError::UnknownVersion(version)),
///         }
///     }
/// }
///
/// let reminder = Reminder { to: "a@b.example".to_owned(), language: "de".to_owned() };
/// let new = NewTimeout::typed("trial/17", WallTime::MIN, &reminder)?;
/// assert_eq!(&*new.payload, br#"2 {"to":"a@b.example","language":"de"}"#);
/// assert_eq!(Reminder::decode(br#"1 "a@b.example""#)?.language, "en");
/// assert!(matches!(Reminder::decode(b"3 {}"), Err(PayloadError::UnknownVersion(3))));
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
pub trait Payload: Serialize + DeserializeOwned {
    /// Version of the form that this program writes.
    const VERSION: u32;

    /// Reads a payload of a version. The default reads [`VERSION`](Self::VERSION) only.
    fn read(version: u32, json: &[u8]) -> Result<Self, PayloadError> {
        if version != Self::VERSION {
            return Err(PayloadError::UnknownVersion(version));
        }
        Ok(serde_json::from_slice(json)?)
    }

    /// Writes the payload as bytes.
    fn encode(&self) -> Result<Vec<u8>, PayloadError> {
        let mut bytes = format!("{} ", Self::VERSION).into_bytes();
        serde_json::to_writer(&mut bytes, self)?;
        Ok(bytes)
    }

    /// Reads a payload from bytes.
    fn decode(bytes: &[u8]) -> Result<Self, PayloadError> {
        let space = bytes.iter().position(|&byte| byte == b' ').ok_or(PayloadError::NoVersion)?;
        let version = str::from_utf8(&bytes[..space]).ok().and_then(|text| text.parse().ok());
        Self::read(version.ok_or(PayloadError::NoVersion)?, &bytes[space + 1..])
    }
}

/// Error of a typed payload.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PayloadError {
    /// This program does not know the version of the payload. Another worker may.
    #[error("version {0} of the payload is unknown here")]
    UnknownVersion(u32),
    /// The payload does not begin with a version: another program wrote it.
    #[error("payload has no version")]
    NoVersion,
    /// The id is not valid, or the payload too large.
    #[error(transparent)]
    Input(#[from] InputError),
    /// The payload does not have the form of its version.
    #[error("payload does not have the form of its version")]
    Format(#[from] serde_json::Error),
}

impl NewTimeout {
    /// Creates a timeout like [`new`](Self::new), with a typed payload: see [`Payload`].
    pub fn typed<P: Payload>(
        id: impl AsRef<str>,
        due: WallTime,
        payload: &P,
    ) -> Result<Self, PayloadError> {
        Ok(Self::new(id, due, payload.encode()?)?)
    }
}

impl Delivery {
    /// Reads a typed payload. A handler that returns the error passes timeouts of an unknown
    /// version to other workers.
    pub fn decode<P: Payload>(&self) -> Result<P, PayloadError> {
        P::decode(self.payload())
    }
}

/// Returns whether the error of a handler says that another worker may know the payload.
pub(crate) fn is_unknown_version(error: &dyn Any) -> bool {
    let boxed = error.downcast_ref::<Box<dyn Error + Send + Sync>>();
    let boxed = boxed.and_then(|error| error.downcast_ref::<PayloadError>());
    let error = error.downcast_ref::<PayloadError>().or(boxed);
    matches!(error, Some(PayloadError::UnknownVersion(_)))
}
