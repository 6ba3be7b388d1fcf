//! Who may read and who may change.

use std::sync::Arc;

use axum::{
    extract::{Request, State},
    http::{HeaderMap, HeaderName, Method, StatusCode, header},
    middleware::Next,
    response::{IntoResponse, Response},
};
use base64::{Engine, engine::general_purpose::STANDARD};
use subtle::ConstantTimeEq;

use super::{Page, TOKEN};

pub(super) fn is_token(token: &str) -> bool {
    token.len() >= TOKEN && token.bytes().all(|byte| byte.is_ascii_graphic())
}

/// Returns what follows the scheme, whose name may have letters of either case.
fn credentials<'a>(headers: &'a HeaderMap, scheme: &str) -> Option<&'a str> {
    let (name, given) = text(headers, &header::AUTHORIZATION)?.split_once(' ')?;
    name.eq_ignore_ascii_case(scheme).then_some(given)
}

fn text<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

impl Page {
    /// Returns whether a text is the token. The time that it takes tells nothing but the length.
    fn admits(&self, given: &str) -> bool {
        let is_equal = |token: &String| token.as_bytes().ct_eq(given.as_bytes()).into();
        self.token.as_ref().is_some_and(is_equal)
    }

    fn has_bearer(&self, headers: &HeaderMap) -> bool {
        credentials(headers, "Bearer").is_some_and(|given| self.admits(given))
    }

    /// Returns whether the token is the password, for which a browser asks.
    fn has_password(&self, headers: &HeaderMap) -> bool {
        let basic = credentials(headers, "Basic").and_then(|given| STANDARD.decode(given).ok());
        let text = basic.and_then(|bytes| String::from_utf8(bytes).ok()).unwrap_or_default();
        text.split_once(':').is_some_and(|(_, password)| self.admits(password))
    }
}

/// Refuses names of other machines, and requests that another site has made a browser send. Asks
/// for the token, unless the request has it. Anyone may have the style. Refuses changes, unless the
/// page allows them.
pub(super) async fn check(State(page): State<Arc<Page>>, request: Request, next: Next) -> Response {
    let headers = request.headers();
    let host = text(headers, &header::HOST).unwrap_or_default();
    if page.token.is_none() && !is_local(host) {
        return page.say(StatusCode::FORBIDDEN, "Without a token, only this machine is served.");
    }
    let is_safe = [Method::GET, Method::HEAD].contains(request.method());
    if !is_safe && !page.has_bearer(headers) && !is_same_origin(headers, host) {
        return page.say(StatusCode::FORBIDDEN, "The request comes from another site.");
    }
    let is_open = page.token.is_none() || request.uri().path() == "/style.css";
    if !is_open && !page.has_bearer(headers) && !page.has_password(headers) {
        let ask = [(header::WWW_AUTHENTICATE, r#"Basic realm="timeouts", charset="UTF-8""#)];
        let refused = page.say(StatusCode::UNAUTHORIZED, "The password is the token.");
        return (ask, refused).into_response();
    }
    if !is_safe && !page.allows_changes {
        return page.say(StatusCode::FORBIDDEN, "This page is read-only.");
    }
    next.run(request).await
}

fn is_local(host: &str) -> bool {
    let name = host.rsplit_once(':').map_or(host, |(name, port)| {
        if port.bytes().all(|byte| byte.is_ascii_digit()) { name } else { host }
    });
    let address = name.trim_start_matches('[').trim_end_matches(']');
    name == "localhost" || address.parse().is_ok_and(|ip: std::net::IpAddr| ip.is_loopback())
}

/// A browser sends one of these headers with each form.
fn is_same_origin(headers: &HeaderMap, host: &str) -> bool {
    let site = HeaderName::from_static("sec-fetch-site");
    if let Some(site) = text(headers, &site) {
        return site == "same-origin";
    }
    let origin = text(headers, &header::ORIGIN).and_then(|origin| origin.split_once("://"));
    origin.is_some_and(|(_, origin)| origin == host)
}
