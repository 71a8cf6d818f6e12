"""Devices that run frozen lists of dispatches; each is one module that is imported only where its device is used."""
